"""Scripts in JavaScript, run by V8 in a process of their own."""
