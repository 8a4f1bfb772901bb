"""Interfaces that scripts written for other libraries expect of zeroshard. Nothing outside imports this package."""
