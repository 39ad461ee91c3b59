"""What do the runs come to whose figures the pages show? Each by its command, all of them by one."""
