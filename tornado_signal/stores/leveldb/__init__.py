"""The embedded engine: sessions in one LevelDB directory."""
