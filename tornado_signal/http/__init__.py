"""The public API over HTTP: routes, requests, streams, files, CORS and the OpenAPI document."""
