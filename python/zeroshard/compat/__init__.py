"""Has the interfaces that scripts written for other libraries expect. zeroshard itself works without this package."""
