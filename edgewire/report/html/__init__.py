"""Makes a report of runs: one HTML file, its pictures as SVG, and its data as CSV."""
