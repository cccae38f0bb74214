"""The terminal front ends over the session layer: the console, one file, and the doctor."""
