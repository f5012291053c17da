"""Models and providers: requests, events, configuration, errors, retries, circuits, usage."""
