"""What does the author of a plugin start from? ``esper new`` writes a package that works, from the templates here."""
