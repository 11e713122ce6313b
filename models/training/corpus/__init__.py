"""The training text: from public repositories at fixed commits to cleaned documents."""
