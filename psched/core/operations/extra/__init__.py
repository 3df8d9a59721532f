"""What becomes of an extra run while another run of its schedule is going on."""
