"""Interchange: results of tuning as other programs' files have them, read and written without a store or a device."""
