"""The command `rwkv-gpu`: one file per command, which parses, calls the library and renders."""
