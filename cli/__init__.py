"""The command `rwkv-gpu`: one file a command, each parses, calls the library and renders."""
