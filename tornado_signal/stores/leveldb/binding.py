"""The binding of LevelDB: plyvel where it has wheels, plyvel-next (a fork) elsewhere.

`setup.cfg` says which goes where. Both have the same names, and open each other's directories.
"""

try:
    import plyvel
except ModuleNotFoundError:
    import plyvel_next as plyvel

__all__ = ["plyvel"]
