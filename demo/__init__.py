"""`make demo`: a real webhook, plan and agent, all run by corepin's command."""
