"""Networks: one shape of actor and of critic, whatever is inside."""
