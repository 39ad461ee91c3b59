"""The standard blueprints of Esper: what a seed can grow into."""
