"""What the model practises: families of exercises with known answers, in many phrasings."""
