"""What disturbs exclusive CPUs, counted."""
