"""What a real browser shows: Debian's Chromium, driven by Playwright."""
