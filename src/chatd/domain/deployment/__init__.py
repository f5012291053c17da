"""What administrators and users configure: limits, webhooks, push, schedules, settings."""
