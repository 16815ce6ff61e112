"""One module for each group of routes; each turns a Generator into a router."""
