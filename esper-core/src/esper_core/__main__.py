"""What does ``python -m esper_core`` do? The same as ``esper``."""

from esper_core.cli import main

if __name__ == "__main__":
    main()
