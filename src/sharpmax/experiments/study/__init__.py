"""Three models on long inputs: policies, calibrations and tuning on lookup and RULER."""
