"""One module per command; `sharpmax.cli.program` lists them."""
