"""What is kept in a state store, a module for each kind of record."""
