// placeholder until the backend is written
