"""Tools of MCP servers: their configuration, and a client that calls them."""
