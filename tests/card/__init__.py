"""What only a physical card can show; run by ``make card`` on a machine that has one."""
