"""Run the command line as ``python -m esper_run``."""

from esper_run.cli import main

if __name__ == "__main__":
    main()
