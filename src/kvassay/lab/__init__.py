"""`kvassay lab`: four rooms in a local web page, where a slider moves the product's own quantizer.

The server answers on 127.0.0.1 only, under a random token. Nothing here is imported by the rest of the library but the
command.
"""
