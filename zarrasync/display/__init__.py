"""Text, HTML, pictures and progress bars for users."""
