"""Structured output: schemas, regular expressions and grammars, compiled by xgrammar
and followed token by token.
"""
