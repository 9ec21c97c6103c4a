"""The tests; a package, so that another distribution's "tests" cannot stand in for it."""
