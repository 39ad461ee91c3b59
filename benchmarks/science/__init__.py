"""What is true of growing networks? Each script here measures one claim and prints it with its uncertainty."""
