"""What installs edgepart, besides pip: a package for Debian (deb.py) and images of containers (containers/)."""
