"""The roof: builds every object and starts and stops them in order."""
