"""The addresses of the studio, one module per page."""
