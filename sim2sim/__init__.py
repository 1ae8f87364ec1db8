"""A policy file against MuJoCo: it judges what ships, so it never imports torch or trainer."""
