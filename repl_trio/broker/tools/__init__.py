"""What peers offer: their catalogues, and the checks of arguments against schemas."""
