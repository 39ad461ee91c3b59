"""Run the commands whose figures the pages show."""
