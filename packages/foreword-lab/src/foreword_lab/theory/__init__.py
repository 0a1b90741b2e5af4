"""Speed of drafting by the formulas of the papers, fed by measurements of a pair."""
