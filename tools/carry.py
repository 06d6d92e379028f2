"""What a reader can carry away: the chapters as notebooks, a PDF, a zip of the site."""
