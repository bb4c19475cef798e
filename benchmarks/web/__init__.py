"""The pages measured in Chromium: their weight and first paint, frames among 20,000 trials, and how live a job is."""
