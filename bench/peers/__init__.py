"""What corepin's webhook is measured against."""
