"""Jobs: their files on this machine, what is put into their units, and files that go to and come from any unit."""
