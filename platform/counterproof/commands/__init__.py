"""The commands of the `counterproof` command line, by what they work on."""
