"""Run the command line as ``python -m esper_core``."""

from esper_core.cli import main

if __name__ == "__main__":
    main()
