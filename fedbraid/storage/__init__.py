"""Files and client states on disk, safe against crashes."""
