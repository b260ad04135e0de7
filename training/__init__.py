"""How the built-in model is made: its text, its vocabulary, its training and its file. No part of the library."""
