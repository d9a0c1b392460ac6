"""Types that programs of users see."""
