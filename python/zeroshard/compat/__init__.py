"""What scripts for other libraries expect of zeroshard."""
